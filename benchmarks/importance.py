"""Time of the default importance measures: 209 knobs x 1,000 trials. The limit that the project set itself is 20 s."""

from __future__ import annotations

import time

import numpy as np

from gpt_search import Observation, Outcome
from gpt_search.analysis.importance_set import measure_importance
from gpt_search.domain.history import History
from gpt_search.domain.space import Dimension, SearchSpace


def main() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.choice([2, 2, 2, 2, 3, 4, 8], 209)
    space = SearchSpace([Dimension(f"knob:{i}", tuple(map(str, range(c))), 0) for i, c in enumerate(sizes.tolist())])
    codes = np.stack([rng.integers(0, c, 1001) for c in sizes], axis=1).astype(np.int16)
    codes[0] = 0
    y = 0.1 * (codes[:, 0] == 1) - 0.05 * (codes[:, 1] == 1) + rng.normal(0, 0.01, 1001)
    history = History(space)
    for i in range(1001):
        history.append(i, codes[i], Observation(Outcome.OK, float(np.exp(y[i])), error_ms=0.01))
    wall, cpu = time.perf_counter(), time.process_time()
    found = measure_importance(history, strategy="random")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"209 knobs, 1000 trials: {wall:.1f} s, {cpu:.1f} s of CPU")
    for method, rows in found.knobs.groupby("method"):
        print(f"  {method}: {', '.join(rows.sort_values('rank')['knob'].head(2))}")


if __name__ == "__main__":
    main()
