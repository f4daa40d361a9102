"""From a name to a loaded model: resolving, downloading, loading, describing."""
