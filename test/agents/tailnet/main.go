// Command control is the control plane and the relay of a tailnet on this machine, from Tailscale's own tests. It prints its address.
package main

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"

	"tailscale.com/derp/derpserver"
	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
)

func main() {
	quiet := func(string, ...any) {}
	relay := httptest.NewUnstartedServer(derpserver.Handler(derpserver.New(key.NewNode(), quiet)))
	relay.Config.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler))
	relay.StartTLS()
	node := &tailcfg.DERPNode{
		Name: "relay", RegionID: 1, HostName: "127.0.0.1", IPv4: "127.0.0.1", IPv6: "none", STUNPort: -1,
		DERPPort: relay.Listener.Addr().(*net.TCPAddr).Port, InsecureForTests: true,
	}
	region := &tailcfg.DERPRegion{RegionID: 1, RegionCode: "test", Nodes: []*tailcfg.DERPNode{node}}
	control := &testcontrol.Server{
		Logf:             quiet,
		AllNodesSameUser: true,
		MagicDNSDomain:   "tail.example",
		DNSConfig:        &tailcfg.DNSConfig{Proxied: true, Domains: []string{"tail.example"}},
		DERPMap:          &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: region}},
	}
	control.HTTPTestServer = httptest.NewUnstartedServer(control)
	control.HTTPTestServer.Start()
	fmt.Println(control.HTTPTestServer.URL)
	select {}
}
