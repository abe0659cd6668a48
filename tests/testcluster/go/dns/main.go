// Command dns is CoreDNS with the plugins that a cluster's own names need, and no others: small, quick to build, and
// unable to ask anything beyond the cluster.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
)

func main() {
	// The order in which a query passes the plugins; one that is not named here cannot stand in a Corefile.
	dnsserver.Directives = []string{"bind", "errors", "cache", "loadbalance", "kubernetes"}
	coremain.Run()
}
