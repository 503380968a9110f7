"""The cost of a compiled program, on texts written by hand as the TPU compiler writes them."""

import pytest

from rose_jax.compile.cost import cost
from rose_jax.compile.hlo import Place, parse

HEAD = """\
HloModule jit_step, is_scheduled=true

FileNames
1 "/somewhere/rose_jax/train/step.py"
2 "/elsewhere/flax/linen/linear.py"
3 "/somewhere/rose_jax/models/norm.py"

FunctionNames
1 "make_step.<locals>.step"
2 "Conv.__call__"
3 "BatchNorm.__call__"

FileLocations
1 {file_name_id=1 function_name_id=1 line=70 end_line=70 column=1 end_column=9}
2 {file_name_id=2 function_name_id=2 line=33 end_line=33 column=1 end_column=9}
3 {file_name_id=3 function_name_id=3 line=21 end_line=21 column=1 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=2}

"""


def cycles(number):
    return f'backend_config={{"flag_configs":[],"window_config":{{"estimated_cycles":"{number}","iteration_bounds":["1"]}}}}'


# Rows of a fusion: 10 cycles each; the inner loop runs 5 times in each of 7 rounds of the outer one.
NESTED = f"""\
%fused (p.0: f32[8,128]) -> f32[8,128] {{
  %p.0 = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  ROOT %tanh.1 = f32[8,128]{{1,0:T(8,128)}} tanh(%p.0), metadata={{op_name="jit(step)/tanh" stack_frame_id=3}}, {cycles(999)}
}}

%inner_body (t.1: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %t.1 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)S(1)}}) parameter(0)
  %i.1 = s32[]{{:T(128)}} get-tuple-element(%t.1), index=0
  %x.1 = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%t.1), index=1
  %fusion.1 = f32[8,128]{{1,0:T(8,128)}} fusion(%x.1), kind=kLoop, calls=%fused, metadata={{op_name="jit(step)/jvp(norm)/reduce_sum" stack_frame_id=3}}, {cycles(10)}
  ROOT %tuple.1 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) tuple(%i.1, %fusion.1)
}}

%inner_condition (t.2: (s32[], f32[8,128])) -> pred[] {{
  %t.2 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %i.2 = s32[]{{:T(128)}} get-tuple-element(%t.2), index=0
  %five = s32[]{{:T(128)}} constant(5), metadata={{op_name="jit(step)/while"}}
  ROOT %lt.2 = pred[]{{:T(512)}} compare(%i.2, %five), direction=LT
}}

%outer_body (t.3: (s32[], f32[8,128])) -> (s32[], f32[8,128]) {{
  %t.3 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %zero = s32[]{{:T(128)}} constant(0)
  %x.3 = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%t.3), index=1
  %tuple.3 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) tuple(%zero, %x.3)
  ROOT %while.3 = (s32[]{{:T(128)}}, /*index=1*/f32[8,128]{{1,0:T(8,128)}}) while(%tuple.3), condition=%inner_condition, body=%inner_body, metadata={{op_name="jit(step)/while/body/while" stack_frame_id=1}}
}}

%outer_condition (t.4: (s32[], f32[8,128])) -> pred[] {{
  %t.4 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) parameter(0)
  %i.4 = s32[]{{:T(128)}} get-tuple-element(%t.4), index=0
  %nine = s32[]{{:T(128)}} constant(9)
  ROOT %lt.4 = pred[]{{:T(512)}} compare(%i.4, %nine), direction=LT
}}

ENTRY %main (x: f32[8,128]) -> (s32[], f32[8,128]) {{
  %x = f32[8,128]{{1,0:T(8,128)}} parameter(0)
  %two = s32[]{{:T(128)}} constant(2)
  %copy.5 = s32[]{{:T(128)}} copy(%two)
  %copy.6 = f32[8,128]{{1,0:T(8,128)}} copy(%x), {cycles(100)}
  %tuple.5 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) tuple(%copy.5, %copy.6)
  ROOT %while.5 = (s32[]{{:T(128)}}, f32[8,128]{{1,0:T(8,128)}}) while(%tuple.5), condition=%outer_condition, body=%outer_body, metadata={{op_name="jit(step)/while" stack_frame_id=1}}
}}
"""


def test_loop_bodies_count_as_often_as_they_run():
    """From 2 below 9 is 7 rounds of the outer loop; what a fusion is made of does not count again."""
    found = cost(parse(HEAD + NESTED))
    assert found.cycles == 100 + 7 * 5 * 10
    assert found.loops == (("jit(step)/while", 7), ("jit(step)/while/body/while", 5))


def test_a_loop_whose_bound_is_traced_counts_once_and_is_told():
    traced = NESTED.replace(
        "%nine = s32[]{:T(128)} constant(9)", "%nine = s32[]{:T(128)} get-tuple-element(%t.4), index=1"
    )
    found = cost(parse(HEAD + traced))
    assert found.cycles == 100 + 5 * 10
    assert found.loops[0] == ("jit(step)/while", None)


@pytest.mark.parametrize(("direction", "rounds"), [("LT", 7), ("LE", 8), ("NE", 7), ("GT", 0), ("GE", 0)])
def test_every_kind_of_comparison(direction, rounds):
    text = NESTED.replace("compare(%i.4, %nine), direction=LT", f"compare(%i.4, %nine), direction={direction}")
    assert cost(parse(HEAD + text)).cycles == 100 + rounds * 50


def test_a_loop_from_where_nobody_knows_counts_once():
    """It runs to 9, but from a number that the program is given."""
    given = NESTED.replace("%copy.5 = s32[]{:T(128)} copy(%two)", "%copy.5 = s32[]{:T(128)} parameter(1)")
    assert cost(parse(HEAD + given)).loops[0] == ("jit(step)/while", None)


def test_a_comparison_inside_a_fusion_with_its_constant():
    fused = """\
%compared (a: s32[]) -> pred[] {
  %a = s32[]{:T(128)} parameter(0)
  %b = s32[]{:T(128)} constant(9)
  ROOT %lt = pred[]{:T(512)} compare(%a, %b), direction=LT
}

"""
    text = NESTED.replace("  %nine = s32[]{:T(128)} constant(9)\n", "").replace(
        "ROOT %lt.4 = pred[]{:T(512)} compare(%i.4, %nine), direction=LT",
        "ROOT %lt.4 = pred[]{:T(512)} fusion(%i.4), kind=kLoop, calls=%compared",
    )
    assert cost(parse(HEAD + fused + text)).cycles == 100 + 7 * 50


def test_a_comparison_inside_a_fusion():
    """The compiler may put it there, and leave the constant outside."""
    fused = """\
%compared (a: s32[], b: s32[]) -> pred[] {
  %a = s32[]{:T(128)} parameter(0)
  %b = s32[]{:T(128)} parameter(1)
  ROOT %lt = pred[]{:T(512)} compare(%a, %b), direction=LT
}

"""
    text = NESTED.replace(
        "ROOT %lt.4 = pred[]{:T(512)} compare(%i.4, %nine), direction=LT",
        "ROOT %lt.4 = pred[]{:T(512)} fusion(%i.4, %nine), kind=kLoop, calls=%compared",
    )
    assert cost(parse(HEAD + fused + text)).cycles == 100 + 7 * 50


def test_parts_are_named_by_our_innermost_function():
    module = parse(HEAD + NESTED)
    instruction = module.computations["inner_body"]["fusion.1"]
    assert list(module.places(instruction)) == [
        Place("/somewhere/rose_jax/models/norm.py", "BatchNorm.__call__", 21),
        Place("/somewhere/rose_jax/train/step.py", "make_step.<locals>.step", 70),
    ]
    parts = cost(module).parts
    assert parts[0] == ("models/norm.py BatchNorm.__call__: reduce_sum", 350, 1)
    assert parts[1] == ("copy", 100, 1)


def test_a_fusion_without_a_name_is_called_after_its_last_operation():
    text = NESTED.replace('metadata={op_name="jit(step)/jvp(norm)/reduce_sum" stack_frame_id=3}, ', "")
    assert cost(parse(HEAD + text)).parts[0].name == "models/norm.py BatchNorm.__call__: tanh"


def test_frames_of_libraries_are_passed_over():
    text = NESTED.replace('reduce_sum" stack_frame_id=3', 'conv_general_dilated" stack_frame_id=2')
    assert cost(parse(HEAD + text)).parts[0].name == "train/step.py make_step.step: conv_general_dilated"


def test_what_comes_of_a_gradient_is_marked():
    text = NESTED.replace("jit(step)/jvp(norm)/reduce_sum", "jit(step)/transpose(jvp(norm))/reduce_sum")
    assert cost(parse(HEAD + text)).parts[0].name == "models/norm.py BatchNorm.__call__: reduce_sum (backward)"


COLLECTIVES = f"""\
%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

%scattered (s: f32[64]) -> f32[8] {{
  %s = f32[64]{{0:T(128)}} parameter(0)
  ROOT %reduce-scatter.1 = f32[8]{{0:T(128)}} reduce-scatter(%s), channel_id=4, dimensions={{0}}, to_apply=%add
}}

%cheap (c.1: f32[64]) -> f32[64] {{
  ROOT %c.1 = f32[64]{{0:T(128)}} parameter(0)
}}

%dear (c.2: f32[64]) -> f32[64] {{
  %c.2 = f32[64]{{0:T(128)}} parameter(0)
  %gathered = f32[512]{{0:T(128)}} all-gather(%c.2), channel_id=5, dimensions={{0}}
  ROOT %negate.1 = f32[64]{{0:T(128)}} negate(%c.2), {cycles(7)}
}}

ENTRY %main (x: f32[64], p: pred[]) -> f32[64] {{
  %x = f32[64]{{0:T(128)}} parameter(0)
  %p = s32[]{{:T(128)}} parameter(1)
  %all-reduce.1 = (f32[64]{{0:T(128)S(1)}}, f32[64]{{0:T(128)}}) all-reduce(%x, %x), channel_id=1, to_apply=%add
  %all-reduce-start.1 = f32[64]{{0:T(128)}} all-reduce-start(%x), channel_id=2, to_apply=%add
  %all-reduce-done.1 = f32[64]{{0:T(128)}} all-reduce-done(%all-reduce-start.1)
  %async-start.1 = ((f32[64]{{0:T(128)}}), f32[8]{{0:T(128)}}, u32[]{{:S(2)}}) async-start(%x), calls=%scattered
  %async-done.1 = f32[8]{{0:T(128)}} async-done(%async-start.1)
  %sort.1 = f32[64]{{0:T(128)}} sort(%x), dimensions={{0}}, to_apply=%add
  %buffer = f32[64]{{0:T(128)}} custom-call(), custom_call_target="AllocateBuffer"
  %factor = f32[8,8]{{1,0:T(8,128)}} custom-call(%x), custom_call_target="Cholesky"
  ROOT %chosen = f32[64]{{0:T(128)}} conditional(%p, %x, %x), branch_computations={{%cheap, %dear}}
}}
"""


def test_collectives_count_once_each_also_where_they_run_beside_other_work():
    found = cost(parse(COLLECTIVES))
    assert found.collectives == {"all-reduce": 2, "reduce-scatter": 1, "all-gather": 1}


def test_a_collective_in_pieces_beside_other_work_counts_once():
    """The compiler starts it in one fusion, goes on with it in others and ends it in a last one: one channel."""
    piece = """\
%piece.NUMBER (q: f32[8]) -> f32[64] {
  %q = f32[8]{0:T(128)} parameter(0)
  ROOT %all-gather.NUMBER = f32[64]{0:T(128)} all-gather(%q), channel_id=9, dimensions={0}
}

"""
    main = "ENTRY %main (x: f32[8]) -> f32[64] {\n  %x = f32[8]{0:T(128)} parameter(0)\n"
    for number in (1, 2, 3):
        main += f"  %f.{number} = f32[64]{{0:T(128)}} fusion(%x), kind=kCustom, calls=%piece.{number}\n"
    text = "".join(piece.replace("NUMBER", str(number)) for number in (1, 2, 3)) + main + "}\n"
    found = cost(parse(text))
    assert found.collectives == {"all-gather": 1}
    assert found.without_estimate == {}


def test_a_fusion_without_an_estimate_is_told_by_its_place():
    text = NESTED.replace(cycles(10), "backend_config={}")
    assert cost(parse(HEAD + text)).without_estimate == {"models/norm.py BatchNorm.__call__: reduce_sum": 35}


def test_of_a_conditional_the_dearest_branch_counts():
    assert cost(parse(COLLECTIVES)).cycles == 7


def test_work_without_an_estimate_is_told():
    assert cost(parse(COLLECTIVES)).without_estimate == {"sort": 1, "Cholesky": 1}


def test_flops_of_a_product_in_a_loop():
    """[8, 32] @ [32, 16], twice 8 x 16 x 32, seven rounds."""
    body = """\
  %w.1 = f32[32,16]{1,0:T(8,128)} constant({...})
  %d.1 = f32[8,32]{1,0:T(8,128)} constant({...})
  %dot.1 = f32[8,16]{1,0:T(8,128)} dot(%d.1, %w.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
"""
    text = NESTED.replace("  ROOT %while.3", body + "  ROOT %while.3")
    assert cost(parse(HEAD + text)).flops == 7 * 2 * 8 * 16 * 32


def convolution(inputs, kernel, output, window, labels="b01f_01io->b01f", more=""):
    return f"""\
%fused (l: bf16[{inputs}], k: bf16[{kernel}]) -> f32[{output}] {{
  %l = bf16[{inputs}]{{3,2,1,0:T(8,128)(2,1)}} parameter(0)
  %k = bf16[{kernel}]{{3,2,1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %convolution.1 = f32[{output}]{{3,2,1,0:T(8,128)}} convolution(%l, %k), window={{{window}}}, dim_labels={labels}{more}
}}

ENTRY %main (l.1: bf16[{inputs}], k.1: bf16[{kernel}]) -> f32[{output}] {{
  %l.1 = bf16[{inputs}]{{3,2,1,0:T(8,128)(2,1)}} parameter(0)
  %k.1 = bf16[{kernel}]{{3,2,1,0:T(8,128)(2,1)}} parameter(1)
  ROOT %fusion.1 = f32[{output}]{{3,2,1,0:T(8,128)}} fusion(%l.1, %k.1), kind=kOutput, calls=%fused
}}
"""


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        # 3 x 3 on 6 x 6 with an edge of 1: a row meets 2 + 3 * 4 + 2 = 16 taps
        (convolution("4,6,6,5", "3,3,5,7", "4,6,6,7", "size=3x3 pad=1_1x1_1"), 2 * 4 * 7 * 5 * 16 * 16),
        # stride 2, 3 outputs a side: the first meets 2 taps, the others 3
        (convolution("4,6,6,5", "3,3,5,7", "4,3,3,7", "size=3x3 stride=2x2 pad=1_0x1_0"), 2 * 4 * 7 * 5 * 8 * 8),
        # the gradient of that, which takes as much: of the dilated input every second position is data
        (
            convolution("4,3,3,7", "3,3,7,5", "4,6,6,5", "size=3x3 pad=1_2x1_2 lhs_dilate=2x2"),
            2 * 4 * 5 * 7 * 8 * 8,
        ),
        # a plain product: one tap
        (convolution("4,1,1,5", "1,1,5,7", "4,1,1,7", "size=1x1"), 2 * 4 * 5 * 7),
    ],
)
def test_flops_of_a_convolution_leave_out_its_edge(text, flops):
    assert cost(parse(text)).flops == flops
