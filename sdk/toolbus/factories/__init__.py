"""Toolkits as factories: functions that make a toolkit from a config."""
