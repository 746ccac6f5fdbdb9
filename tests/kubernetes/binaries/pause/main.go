// The process that holds a pod's namespaces open: it waits to be told to end, and reaps what is left to it where
// a pod shares its process namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		for {
			ended, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			if ended <= 0 || err != nil {
				break
			}
		}
	}
}
