"""Sources that go on until they are stopped: addresses that are polled, queues, and pipes."""
