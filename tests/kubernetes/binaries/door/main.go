// Lets programs of this machine into the cluster, which has a network of its own: it is given a socket that listens
// on this machine's loopback, runs inside the cluster's network, and carries every connection to an address there.
//
//	door ADDRESS, with the listening socket as descriptor 0
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	listener, err := net.FileListener(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	for {
		outside, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go carry(outside.(*net.TCPConn), os.Args[1])
	}
}

// carry connects both ways until both sides have said all. Where nobody listens inside, the caller is refused late.
func carry(outside *net.TCPConn, address string) {
	defer outside.Close()
	dialled, err := net.Dial("tcp", address)
	if err != nil {
		log.Print(err)
		return
	}
	defer dialled.Close()
	inside := dialled.(*net.TCPConn)
	done := make(chan struct{}, 2)
	pump := func(to, from *net.TCPConn) {
		if _, err := io.Copy(to, from); err != nil {
			// One side is gone, so there is nobody to carry for.
			to.Close()
			from.Close()
		}
		to.CloseWrite()
		done <- struct{}{}
	}
	go pump(inside, outside)
	go pump(outside, inside)
	<-done
	<-done
}
