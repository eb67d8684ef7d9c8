"""What was compiled once, kept on disk: a store of files by key, which never makes anything fail. See docs/cache.md."""

from autocast.cache.folders import Folder, folders
from autocast.cache.store import Found, Store, store

__all__ = ["Folder", "Found", "Store", "folders", "store"]
