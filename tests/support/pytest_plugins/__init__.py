"""What the test run itself uses: order of tests, parts that a machine may lack."""
