"""The search for the processes of a session, to kill them."""

import os
import signal
import subprocess

from tests.spark_chaos.kills import in_session


def test_a_session_has_those_whose_parents_were_killed():
    program = "sleep 60 & echo $!; wait"
    leader = subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    orphan = int(leader.stdout.readline())
    try:
        assert {orphan, leader.pid} == {each.pid for each in in_session(leader.pid)}
        leader.kill()
        leader.wait()
        assert [each.pid for each in in_session(leader.pid)] == [orphan]
    finally:
        os.kill(orphan, signal.SIGKILL)
        leader.stdout.close()
