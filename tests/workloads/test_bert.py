"""The encoder: it is what it says, it is sane, and its fusions are live."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from gpt_search.domain.errors import InputError
from gpt_search.workloads.bert import BertOptions, bert

SMALL = BertOptions(layers=2, hidden=32, heads=2, vocabulary=50, sequence=8)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def feeds(batch: int = 1, options: BertOptions = SMALL) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (batch, options.sequence)
    ids = rng.integers(0, options.vocabulary, shape)
    return {"input_ids": ids, "attention_mask": np.ones(shape, np.int64), "token_type_ids": np.zeros(shape, np.int64)}


def test_it_is_valid_onnx_without_fused_operators() -> None:
    model = bert(SMALL)
    onnx.checker.check_model(model, full_check=True)
    kinds = {n.op_type for n in model.graph.node}
    assert {"Erf", "ReduceMean", "Pow", "Sqrt", "Softmax", "MatMul"} <= kinds
    assert not kinds & {"LayerNormalization", "Gelu", "Attention"}


def test_equal_options_give_equal_bytes_and_the_seed_counts() -> None:
    assert bert(SMALL).SerializeToString() == bert(SMALL).SerializeToString()
    other = BertOptions(layers=2, hidden=32, heads=2, vocabulary=50, sequence=8, seed=1)
    assert bert(other).SerializeToString() != bert(SMALL).SerializeToString()


def test_activations_are_sane_at_depth() -> None:
    out = run(bert(BertOptions(layers=8, hidden=64, heads=4, vocabulary=50, sequence=8)), **feeds(4))
    hidden = out["last_hidden_state"]
    assert hidden.shape == (4, 8, 64) and out["pooler_output"].shape == (4, 64)
    assert np.isfinite(hidden).all() and 0.5 < hidden.std() < 2
    assert 0.2 < out["pooler_output"].std() < 0.95  # tanh neither dead nor saturated
    # Different tokens still give different states: the encoder has not collapsed.
    assert np.std(hidden[:, 0], axis=0).mean() > 0.05


def test_masked_tokens_do_not_reach_the_others() -> None:
    given = feeds()
    given["attention_mask"][:, 5:] = 0
    one = run(bert(SMALL), **given)["last_hidden_state"]
    given["input_ids"][:, 5:] = 0
    other = run(bert(SMALL), **given)["last_hidden_state"]
    np.testing.assert_array_equal(one[:, :5], other[:, :5])
    assert not np.array_equal(one[:, 5:], other[:, 5:])


def test_every_input_matters() -> None:
    base = run(bert(SMALL), **feeds())["pooler_output"]
    for name in feeds():
        given = feeds()
        given[name] = given[name].copy()
        given[name][:, 3] = 1 - np.minimum(given[name][:, 3], 1)
        assert not np.array_equal(run(bert(SMALL), **given)["pooler_output"], base), name


def test_batch_open_or_fixed() -> None:
    assert run(bert(SMALL), **feeds(3))["pooler_output"].shape == (3, 32)
    fixed = bert(BertOptions(layers=1, hidden=32, heads=2, vocabulary=50, sequence=8, batch=2))
    assert [d.dim_value for d in fixed.graph.input[0].type.tensor_type.shape.dim] == [2, 8]


def test_int8_stays_near_float32_and_keeps_the_ranges() -> None:
    exact = bert(SMALL)
    int8 = bert(dataclasses.replace(SMALL, precision="int8"))
    assert "QuantizeLinear" in {n.op_type for n in int8.graph.node}
    assert {p.key for p in int8.metadata_props} == {p.key for p in exact.metadata_props}
    a, b = (run(m, **feeds())["last_hidden_state"].ravel() for m in (exact, int8))
    assert 1e-7 < 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b) < 0.02


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hidden": 30, "heads": 4}, "not a multiple"),
        ({"layers": 0}, "layers is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"precision": "int4"}, "allowed: float32, int8"),
    ],
)
def test_impossible_sizes(options: dict[str, int], why: str) -> None:
    with pytest.raises(InputError, match=why):
        BertOptions(**options)  # type: ignore[arg-type]


def test_attention_is_the_textbook_one(tmp_path: Path) -> None:
    """One layer, recomputed in NumPy from the model's own weights."""
    options = BertOptions(layers=1, hidden=16, heads=2, vocabulary=20, sequence=4)
    model = bert(options)
    w = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    given = feeds(2, options)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return unit * w[f"{name}.gamma"] + w[f"{name}.beta"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(2, 4, 2, 8).transpose(0, 2, 1, 3)

    from math import erf

    x = w["embeddings.word"][given["input_ids"]] + w["embeddings.position"] + w["embeddings.type"][0]
    x = norm(x, "embeddings.norm")
    q, k, v = (heads(linear(x, f"layer.0.attention.{n}")) for n in ("query", "key", "value"))
    scores = np.exp(q @ k.transpose(0, 1, 3, 2) / np.sqrt(8))
    mixed = (scores / scores.sum(-1, keepdims=True)) @ v
    attended = linear(mixed.transpose(0, 2, 1, 3).reshape(2, 4, 16), "layer.0.attention.output")
    x = norm(attended + x, "layer.0.attention.norm")
    inner = linear(x, "layer.0.inner")
    gelu = 0.5 * inner * (1 + np.vectorize(erf)(inner / np.sqrt(2)))
    x = norm(linear(gelu, "layer.0.outer") + x, "layer.0.norm")
    pooled = np.tanh(x[:, 0] @ w["pooler.weight"] + w["pooler.bias"])
    out = run(model, **given)
    np.testing.assert_allclose(out["last_hidden_state"], x, atol=2e-5)
    np.testing.assert_allclose(out["pooler_output"], pooled, atol=2e-5)
