// An API server with bad days: a reverse proxy in front of the real one that refuses, delays or loses what its rules
// name, and remembers every request. Tests set the rules and read the record through a unix socket (rules.go).
//
//	faults -upstream https://HOST:PORT -ca FILE -certificate FILE -key FILE -control SOCKET [-listen ADDRESS]
//
// Descriptor 0 is a socket that listens outside of the cluster's network; -listen adds an address inside. Clients show
// tokens, which pass through; certificates of clients would not.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"flag"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
)

func main() {
	upstream := flag.String("upstream", "", "the real API server")
	ca := flag.String("ca", "", "certificates that vouch for it")
	certificate := flag.String("certificate", "", "what clients are shown")
	key := flag.String("key", "", "its key")
	control := flag.String("control", "", "the unix socket for rules and records")
	listen := flag.String("listen", "", "an address to listen on besides descriptor 0")
	flag.Parse()

	proxy := &proxy{real: forwarder(*upstream, *ca), rules: newRules()}
	outside, err := net.FileListener(os.Stdin)
	check(err)
	listeners := []net.Listener{outside}
	if *listen != "" {
		inside, err := net.Listen("tcp", *listen)
		check(err)
		listeners = append(listeners, inside)
	}
	ended := make(chan error)
	for _, listener := range listeners {
		go func() { ended <- (&http.Server{Handler: proxy}).ServeTLS(listener, *certificate, *key) }()
	}
	// Last: who can reach the control socket can use the proxy.
	controls, err := net.Listen("unix", *control)
	check(err)
	go func() { ended <- http.Serve(controls, proxy.rules.handler()) }()
	check(<-ended)
}

func forwarder(upstream, ca string) *httputil.ReverseProxy {
	address, err := url.Parse(upstream)
	check(err)
	vouching, err := os.ReadFile(ca)
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(vouching)
	return &httputil.ReverseProxy{
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(address)
			request.SetXForwarded()
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, MaxIdleConnsPerHost: 64},
		// Watches are streams: every event goes on at once.
		FlushInterval: -1,
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
