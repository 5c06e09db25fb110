"""The program: `python tests/bench/bench.py --help`.

Only puts the folder of the tests on the path where its own folder stood, so that `bench` is the
package here as in every process of a leg.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("bench.options", run_name="__main__")
