"""What tests of confined programs share."""
