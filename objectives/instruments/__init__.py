"""What is measured of members during training, besides losses."""
