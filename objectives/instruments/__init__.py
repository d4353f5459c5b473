"""What is measured of members while they train, besides losses."""
