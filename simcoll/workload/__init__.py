"""What a training or inference job does: computation and collectives on streams, several groups on the same links."""
