"""What tests share: ways to run, damage, publish and crash."""
