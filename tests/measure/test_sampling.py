import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure_simulations import TRACES, share_steady

from gpt_search.measure.sampling import MIN_SAMPLES, is_steady


@pytest.mark.parametrize("trace", TRACES)
def test_noisy_traces(trace: str) -> None:
    share = share_steady(trace, 1000, 0.02, 100)
    assert share > 0.95 if TRACES[trace][1] else share < 0.05


@pytest.mark.parametrize("trace", [t for t, (_, steady) in TRACES.items() if not steady])
def test_few_samples_do_not_excuse_a_drift_above_the_noise(trace: str) -> None:
    assert share_steady(trace, 15, 0.005, 100) < 0.05


def test_flat_noisy_traces_are_accepted_early() -> None:
    for samples in (MIN_SAMPLES, 20, 60):
        assert share_steady("flat", samples, 0.05, 200) > 0.7


def test_a_slow_trend_counts_where_a_scatter_of_the_same_size_does_not() -> None:
    assert not is_steady(np.linspace(5.2, 5.0, 100))  # 1.3 % between the first and the last block
    assert not is_steady(np.linspace(5.0, 5.2, 100))
    assert is_steady(5 + np.repeat([0.067, 0.0, 0.033], 20))
    assert is_steady(np.linspace(5.1, 5.0, 100))


def test_too_few_samples() -> None:
    assert not is_steady([])
    assert not is_steady([1.0] * (MIN_SAMPLES - 1))
    assert is_steady([1.0] * MIN_SAMPLES)


def test_only_the_later_half_counts() -> None:
    assert is_steady([50.0] * 40 + [5.0] * 41)
    assert not is_steady([50.0] * 41 + [5.0] * 20)


@given(
    st.lists(st.floats(0.1, 10), min_size=MIN_SAMPLES, max_size=60),
    st.integers(-6, 6),
)
def test_unit_does_not_matter(samples: list[float], power: int) -> None:
    assert is_steady(samples) == is_steady(np.ldexp(samples, power))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_samples(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        is_steady([1.0, bad])
