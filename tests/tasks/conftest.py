import sys
from pathlib import Path

# the weights behind the golden numbers are made in tests/models
sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
