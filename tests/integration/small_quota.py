"""`python -m tests.integration.small_quota serve …`: the command `querator`, which accepts a
storage quota small enough for a test to fill.
"""

from querator.cli import main
from querator.config import checks

if __name__ == "__main__":
    vars(checks)["STORAGE_QUOTA_BYTES_MIN"] = 1
    main()
