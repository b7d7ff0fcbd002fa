"""`python -m tests.integration.small_quota serve …`: the command `querator`, which takes a storage
quota as small as a test can fill.
"""

from querator import config
from querator.cli import main

if __name__ == "__main__":
    config.STORAGE_QUOTA_BYTES_MIN = 1
    main()
