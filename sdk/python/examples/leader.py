"""A service with one leader: candidates warm up while they wait, and the leader says where it is.

    TENURE_ENDPOINTS=… python3 leader.py ADDRESS [SECONDS]
"""

from __future__ import annotations

import sys
import threading
import time

import tenure


def main() -> None:
    address = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9000"
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 1.0
    client = tenure.Client.from_env()
    stop = threading.Event()

    def lead(leadership: tenure.Leadership) -> None:
        print(f"leading under token {leadership.token}", flush=True)
        over = leadership.stop_signal()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not over.wait(0.05):
            with leadership.permit(max_op=0.1):
                pass  # one step of the leader's work
        stop.set()

    client.election("payments/leader", value=address, ttl=5).run(lead, until=stop, warm_up=lambda: print("warm"))
    client.close()


if __name__ == "__main__":
    main()
