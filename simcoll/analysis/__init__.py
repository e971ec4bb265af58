"""Why it takes as long as it does: bounds that nothing can beat, and the links that bind."""
