"""New projects, and what is added to them."""
