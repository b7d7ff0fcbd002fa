"""What the nodes tell each other about waiting consumers and ready items."""
