// Calls a scaler as KEDA does, with the types and the client that KEDA's own release generates.
//
// `client ADDRESS POOL` prints one line of JSON. `client ADDRESS POOL stream` prints a line for each
// message of StreamIsActive until the stream ends.
package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	pb "github.com/kedacore/keda/v2/pkg/scalers/externalscaler"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

type answer struct {
	Code        string  `json:"code"`
	Active      bool    `json:"active"`
	Metric      string  `json:"metric"`
	TargetSize  float64 `json:"target_size"`
	MetricValue float64 `json:"metric_value"`
}

func main() {
	connection, err := grpc.NewClient(os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	client := pb.NewExternalScalerClient(connection)
	object := &pb.ScaledObjectRef{
		Name: "chat", Namespace: "models", ScalerMetadata: map[string]string{"pool": os.Args[2]},
	}
	if len(os.Args) > 3 {
		stream(ctx, client, object)
		return
	}
	show(call(ctx, client, object))
}

// call does what KEDA's external scaler does in one polling interval.
func call(ctx context.Context, client pb.ExternalScalerClient, object *pb.ScaledObjectRef) answer {
	specs, err := client.GetMetricSpec(ctx, object)
	if err != nil {
		return answer{Code: status.Code(err).String()}
	}
	spec := specs.MetricSpecs[0]
	request := &pb.GetMetricsRequest{ScaledObjectRef: object, MetricName: spec.MetricName}
	metrics, err := client.GetMetrics(ctx, request)
	if err != nil {
		return answer{Code: status.Code(err).String()}
	}
	value := float64(metrics.MetricValues[0].MetricValue)
	if metrics.MetricValues[0].MetricValueFloat > 0 {
		value = metrics.MetricValues[0].MetricValueFloat
	}
	active, err := client.IsActive(ctx, object)
	if err != nil {
		return answer{Code: status.Code(err).String()}
	}
	return answer{"OK", active.Result, spec.MetricName, spec.TargetSizeFloat, value}
}

func stream(ctx context.Context, client pb.ExternalScalerClient, object *pb.ScaledObjectRef) {
	messages, err := client.StreamIsActive(ctx, object)
	for err == nil {
		var message *pb.IsActiveResponse
		if message, err = messages.Recv(); err == nil {
			show(answer{Code: "OK", Active: message.Result})
		}
	}
	show(answer{Code: status.Code(err).String()})
}

func show(found answer) {
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		panic(err)
	}
}
