"""Copies every topic into ClickHouse: at least once into tables that show each record once."""
