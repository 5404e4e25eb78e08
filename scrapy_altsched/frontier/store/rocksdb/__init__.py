"""Stores of RocksDB, through ``rocksdict``."""
