"""The program: `python tests/bench/simulate.py --help`.

Puts the folder of the tests on the path where its own folder stood, as `bench.py` does.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("bench.simulation_report", run_name="__main__")
