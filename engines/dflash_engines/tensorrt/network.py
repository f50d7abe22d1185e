"""A program parsed into TensorRT's network: opened, inspected, and told what ONNX can't say."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from dflash_engines.errors import EngineError
from dflash_engines.tensorrt.library import Library


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What a parsed network consists of, as far as it matters."""

    layers: int
    attentions: int
    cache_updates: int
    plugins: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """A network, and the parser that owns the weights it refers to."""

    network: Any
    parser: Any


def parse(library: Library, builder: Any, log: Any, model: ModelProto, folder: Path) -> Parsed:
    """The network of `model`, whose weights lie in `folder` and are mapped, not read. Raises EngineError."""
    network = builder.create_network(library.network_flags)
    parser = library.trt.OnnxParser(network, log)
    if not parser.parse(model.SerializeToString(), str(folder / f"{model.graph.name}.onnx")):
        reasons = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise EngineError(
            f"{library.trt.__name__} {library.version} can't read {model.graph.name!r}: "
            f"{'; '.join(reasons) or log.told()}"
        )
    return Parsed(network=network, parser=parser)


def census(library: Library, network: Any) -> Census:
    """Count the layers. An engine can't be inspected without a GPU, the network it is built from can."""
    kinds, names = Counter(layer.type for layer in _layers(network)), library.trt.LayerType
    plugins = (getattr(names, name) for name in ("PLUGIN", "PLUGIN_V2", "PLUGIN_V3"))
    return Census(
        layers=network.num_layers,
        attentions=kinds[names.ATTENTION_INPUT],
        cache_updates=kinds[names.KV_CACHE_UPDATE],
        plugins=sum(kinds[kind] for kind in plugins),
    )


def attentions(library: Library, network: Any) -> Iterator[Any]:
    """Each IAttention of the network."""
    trt = library.trt
    for layer in _layers(network):
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # the bindings hand out the base class
            yield layer.attention


def attend_directly(library: Library, network: Any, model: ModelProto) -> None:
    """Let each attention read queries and keys as the program says, past the parser's products with 1."""
    tensors = _tensors(network)
    wanted = {node.name: node.input for node in model.graph.node if node.op_type == "Attention"}
    for attention in attentions(library, network):
        query, key = wanted[attention.name][:2]
        attention.set_input(0, tensors[query])
        attention.set_input(1, tensors[key])


def attend_by_length(library: Library, network: Any) -> None:
    """Tell each attention the rows in use, beside its mask. ONNX has a way to say so, which the parser drops."""
    length = _tensors(network)["length"]
    rows = network.add_cast(length, library.trt.int32).get_output(0)
    for attention in attentions(library, network):
        attention.key_value_lengths = rows


def allow_decomposition(library: Library, network: Any) -> None:
    """Let attention run as several kernels. fp32 has no other way."""
    for attention in attentions(library, network):
        attention.decomposable = True


def _layers(network: Any) -> Iterator[Any]:
    return (network.get_layer(i) for i in range(network.num_layers))


def _tensors(network: Any) -> dict[str, Any]:
    inputs = (network.get_input(i) for i in range(network.num_inputs))
    outputs = (layer.get_output(i) for layer in _layers(network) for i in range(layer.num_outputs))
    return {tensor.name: tensor for tensor in (*inputs, *outputs)}
