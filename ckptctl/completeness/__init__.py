"""What a resume needs: components, parameters, ranks, and what of them is missing."""
