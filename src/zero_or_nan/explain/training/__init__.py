"""Training steps that are explained when they fail, by a decorator or by a trainer's callback."""
