"""Running the methods: objectives with known smoothness matrices, data, and the check of predicted rates."""
