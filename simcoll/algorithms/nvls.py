"""to come"""
