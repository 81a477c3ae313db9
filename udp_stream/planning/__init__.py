"""Planning: from counts, budgets and settings to what is asked of each plate, and what it costs."""
