"""What only some architectures have: positions, experts, an encoder beside the decoder."""
