// Package generator names the Go types from which the schemas of the Prometheus operator are made.
package generator

import _ "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
