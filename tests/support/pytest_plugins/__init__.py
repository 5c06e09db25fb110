"""What the test run itself uses: the order of tests, and parts that a machine may lack."""
