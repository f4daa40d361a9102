"""From files to packed rows of token ids and masks."""
