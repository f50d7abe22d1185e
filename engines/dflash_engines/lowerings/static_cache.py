"""TensorRT: caches of a fixed number of rows. Its cache update takes no dynamic M."""

from onnx import ModelProto

from dflash_engines.contract import Dim


def static_cache(model: ModelProto, rows: int) -> ModelProto:
    """A copy of `model` whose dimension M is `rows` everywhere."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    graph = lowered.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == Dim.CACHE_ROWS:
                dim.dim_value = rows
    return lowered
