"""A preloaded module that takes its time, as torch does on a cold machine."""

import time

time.sleep(20)
