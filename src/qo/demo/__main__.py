"""`python -m qo.demo`"""

import sys

from qo.demo.tour import take_tour

if __name__ == "__main__":
    sys.exit(take_tour())
