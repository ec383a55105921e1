"""What to do about one service, decided by pure functions on frozen data; nothing here touches a socket."""
