"""Contrastive learning of image encoders."""
