"""The scripted pair and greedy acceptance as ONNX programs, written by hand from the contract's table."""

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.engines.scripted_pair import MASK_TOKEN_ID, POISON_ID, SCRIPT, VOCAB_SIZE

CACHES = ("key_0", "value_0")
WEIGHTS_FILE = "weights.bin"
MASK_WORDS = -(-VOCAB_SIZE // 32)
_INT, _FLOAT, _BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL
Ports = dict[str, tuple[int, list[str | int]]]


class Graph:
    """Collects nodes and constants; an operator's output gets a name unless one is given."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[TensorProto] = []

    def op(self, kind: str, *inputs: str, to: str = "", **attributes: int) -> str:
        name = to or f"{kind}_{len(self.nodes)}"
        node = helper.make_node(kind, inputs, [name], name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return name

    def const(self, value: object, dtype: type = np.int64) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def cast(self, value: str, dtype: int) -> str:
        name = f"Cast_{len(self.nodes)}"
        self.nodes.append(helper.make_node("Cast", [value], [name], name=name, to=dtype))
        return name

    def size(self, value: str, axis: int) -> str:
        """A scalar."""
        return self.op("Gather", self.op("Shape", value), self.const(axis))

    def upto(self, end: str) -> str:
        return self.op("Range", self.const(0), end, self.const(1))

    def column(self, value: str) -> str:
        """[B] to [B, 1]."""
        return self.op("Unsqueeze", value, self.const([1]))

    def model(self, inputs: Ports, outputs: Ports) -> ModelProto:
        def ports(named: Ports) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(n, dtype, shape) for n, (dtype, shape) in named.items()]

        graph = helper.make_graph(self.nodes, "scripted", ports(inputs), ports(outputs), self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)


def _cache_ports(kind: str, prefix: str) -> Ports:
    return {f"{prefix}{kind}_{part}": (_FLOAT, ["B", 1, "M", 1]) for part in CACHES}


def _positions(g: Graph) -> str:
    """[B, S]"""
    return g.op("Add", g.column("start"), g.upto(g.size("tokens", 1)))


def _write(g: Graph, kind: str, values: str) -> None:
    """Write `values` [B, S] over the rows of this call, in keys and values alike."""
    rows = g.op("Unsqueeze", values, g.const([1, 3]))
    for part in CACHES:
        g.op("TensorScatter", f"{kind}_{part}", rows, "start", to=f"new_{kind}_{part}", axis=2)


def _checksum(g: Graph, cache: str, last: str) -> str:
    """Weighted sums of the cache's rows up to `last` [B, S] and below `length`: [B, S]."""
    columns = g.upto(g.size(cache, 2))
    causal = g.op("LessOrEqual", columns, g.op("Unsqueeze", last, g.const([2])))
    live = g.op("Less", columns, g.op("Unsqueeze", "length", g.const([1, 2])))
    weights = g.op("Add", g.op("Mod", g.op("Mul", columns, g.const(7)), g.const(5)), g.const(1))
    terms = g.op("Mul", g.op("Squeeze", cache, g.const([3])), g.cast(weights, _FLOAT))  # [B, 1, M]
    seen = g.op("Where", g.op("And", causal, live), terms, g.const(0, np.float32))
    return g.cast(g.op("ReduceSum", seen, g.const([2]), keepdims=0), _INT)


def _target_token(g: Graph, total: str, position: str, script: str) -> str:
    scripted = g.op("Gather", script, g.op("Mod", position, g.const(len(SCRIPT))))
    other = g.op("Mod", g.op("Add", g.op("Mul", total, g.const(3)), position), g.const(VOCAB_SIZE - 1))
    follows = g.cast(g.op("Mod", total, g.const(4)), _BOOL)
    return g.op("Where", follows, scripted, other)


def target_program() -> ModelProto:
    """Its script is an initialiser in the bundle's weight file."""
    g = Graph()
    value = g.op("Add", g.cast("tokens", _FLOAT), g.const(1, np.float32))
    _write(g, "target", value)
    _write(g, "draft", value)
    position = _positions(g)
    token = _target_token(g, _checksum(g, "new_target_key_0", position), position, "script")
    poison = g.op("Where", g.op("Equal", "tokens", g.const(POISON_ID)), g.const(np.nan, np.float32),
                  g.const(0, np.float32))  # fmt: skip
    chosen = g.op("GatherElements", token, "rows", axis=1)  # [B, R]
    hot = g.op("OneHot", chosen, g.const(VOCAB_SIZE), g.const([0, 1], np.float32), axis=-1)
    spoilt = g.op("Unsqueeze", g.op("GatherElements", poison, "rows", axis=1), g.const([2]))
    g.op("Add", hot, spoilt, to="logits")
    inputs: Ports = {
        "tokens": (_INT, ["B", "S"]),
        "start": (_INT, ["B"]),
        "length": (_INT, ["B"]),
        "rows": (_INT, ["B", "R"]),
        **_cache_ports("target", ""),
        **_cache_ports("draft", ""),
    }
    outputs: Ports = {
        "logits": (_FLOAT, ["B", "R", VOCAB_SIZE]),
        **_cache_ports("target", "new_"),
        **_cache_ports("draft", "new_"),
    }
    model = g.model(inputs, outputs)
    model.graph.initializer.append(_script_in_weights_file())
    return model


def _script_in_weights_file() -> TensorProto:
    tensor = TensorProto(name="script", data_type=_INT, dims=[len(SCRIPT)], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": WEIGHTS_FILE, "offset": 0, "length": len(SCRIPT) * 8}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def draft_program() -> ModelProto:
    """Writes junk over its own block's rows, as a real drafter's rows are of no use to anybody else."""
    g = Graph()
    position = _positions(g)
    anchor = g.op("Slice", "tokens", g.const([0]), g.const([1]), g.const([1]))  # [B, 1]
    before = _checksum(g, "draft_key_0", g.op("Sub", g.column("start"), g.const(1)))  # [B, 1]
    start = g.column("start")
    weights = g.op("Add", g.op("Mod", g.op("Mul", start, g.const(7)), g.const(5)), g.const(1))
    total = g.op("Add", before, g.op("Mul", g.op("Add", anchor, g.const(1)), weights))
    fails = g.cast(g.op("Equal", g.op("Mod", total, g.const(7)), g.const(0)), _INT)
    right = _target_token(g, total, start, "script")
    first = g.op("Mod", g.op("Add", right, fails), g.const(VOCAB_SIZE - 1))
    earlier = g.op("Sub", position, g.const(1))
    scripted = g.op("Gather", "script", g.op("Mod", earlier, g.const(len(SCRIPT))))
    offset = g.op("Sub", position, start)
    guess = g.op("Where", g.op("Equal", offset, g.const(1)), first, scripted)
    g.op("Where", g.op("Equal", offset, g.const(0)), anchor, guess, to="block")
    g.op("Add", g.op("Mul", g.cast("block", _FLOAT), g.const(0, np.float32)), g.const(1, np.float32),
         to="confidence")  # fmt: skip
    _write(g, "draft", g.op("Sub", g.cast("tokens", _FLOAT), g.const(1000, np.float32)))
    inputs: Ports = {
        "tokens": (_INT, ["B", "K"]),
        "start": (_INT, ["B"]),
        "length": (_INT, ["B"]),
        **_cache_ports("draft", ""),
    }
    outputs: Ports = {
        "block": (_INT, ["B", "K"]),
        "confidence": (_FLOAT, ["B", "K"]),
        **_cache_ports("draft", "new_"),
    }
    model = g.model(inputs, outputs)
    model.graph.initializer.append(_script_in_weights_file())
    return model


def accept_program() -> ModelProto:
    g = Graph()
    return _accept(g, g.op("ArgMax", "logits", to="sampled", axis=2, keepdims=0), {})


def accept_mask_program() -> ModelProto:
    """With a grammar's mask; a row that forbids everything gives -1."""
    g = Graph()
    ids = np.arange(VOCAB_SIZE)
    words = g.cast(g.op("Gather", "grammar_mask", g.const(ids // 32), axis=2), _INT)  # [B, R, V]
    unsigned = g.op("Mod", words, g.const(2**32))
    allowed = g.cast(g.op("Mod", g.op("Div", unsigned, g.const(2 ** (ids % 32))), g.const(2)), _BOOL)
    best = g.op("ArgMax", g.op("Where", allowed, "logits", g.const(-1, np.float32)), axis=2, keepdims=0)
    none = g.op("Not", g.cast(g.op("ReduceMax", g.cast(allowed, _INT), g.const([2]), keepdims=0), _BOOL))
    sampled = g.op("Where", none, g.const(-1), best, to="sampled")
    return _accept(g, sampled, {"grammar_mask": (TensorProto.INT32, ["B", "R", MASK_WORDS])})


def _accept(g: Graph, sampled: str, rules: Ports) -> ModelProto:
    columns = g.upto(g.size("block", 1))
    in_use = g.op("Less", columns, g.column("count"))
    first = g.op("Slice", "block", g.const([0]), g.const([1]), g.const([1]))
    wanted = g.op("Slice", g.op("Concat", first, sampled, axis=1), g.const([0]), g.const([-1]), g.const([1]))
    agrees = g.op("Or", g.op("Equal", "block", wanted), g.op("Less", columns, g.column("forced")))
    wrong = g.cast(g.op("Not", g.op("And", agrees, in_use)), _INT)
    run = g.cast(g.op("Equal", g.op("CumSum", wrong, g.const(1)), g.const(0)), _INT)
    kept = g.op("ReduceSum", run, g.const([1]), keepdims=0)  # [B]
    g.op("Max", g.op("Sub", kept, "forced"), g.const(0), to="accepted")
    last = g.op("Max", g.op("Sub", kept, g.const(1)), g.const(0))
    bonus = g.op("GatherElements", sampled, g.column(last), axis=1)
    idle = g.column(g.op("Equal", "count", g.const(0)))
    head = g.op("Where", idle, first, bonus)
    g.op("Where", g.op("Equal", columns, g.const(0)), head, g.const(MASK_TOKEN_ID), to="next_tokens")
    g.op("Min", g.op("Add", "start", kept), "limit", to="next_start")
    g.op("Where", g.op("Equal", "count", g.const(0)), g.const(1), g.op("Add", "next_start", g.size("block", 1)),
         to="next_length")  # fmt: skip
    bad = g.op("Or", g.op("IsNaN", "logits"), g.op("IsInf", "logits"))
    spoilt = g.op("ReduceMax", g.cast(bad, _INT), g.const([2]), keepdims=0)
    seen = g.op("Mul", spoilt, g.cast(in_use, _INT))
    g.op("Equal", g.op("ReduceMax", seen, g.const([1]), keepdims=0), g.const(0), to="finite")
    inputs: Ports = {
        "logits": (_FLOAT, ["B", "R", VOCAB_SIZE]),
        "block": (_INT, ["B", "R"]),
        **{name: (_INT, ["B"]) for name in ("start", "forced", "count", "limit")},
        **rules,
    }
    outputs: Ports = {
        "sampled": (_INT, ["B", "R"]),
        "accepted": (_INT, ["B"]),
        "next_tokens": (_INT, ["B", "R"]),
        "next_start": (_INT, ["B"]),
        "next_length": (_INT, ["B"]),
        "finite": (_BOOL, ["B"]),
    }
    return g.model(inputs, outputs)
