#!/bin/sh
# Two vLLM servers, one GPU each, that share what their vision towers say: vllm_two_replicas.sh MODEL [RUN_DIR]
set -eu
MODEL=$1
RUN_DIR=${2:-/tmp/mmcached-$(id -u)}
EC='{"ec_connector": "MmcachedECConnector", "ec_connector_module_path": "mmcached.integrations.vllm", "ec_role": "ec_both",
     "ec_connector_extra_config": {"run_dir": "'$RUN_DIR'"}}'

trap 'kill $(jobs -p)' EXIT
mmcached serve --workers 0 --store-gb 8 --run-dir "$RUN_DIR" &
CUDA_VISIBLE_DEVICES=0 vllm serve "$MODEL" --port 8001 --ec-transfer-config "$EC" &
CUDA_VISIBLE_DEVICES=1 vllm serve "$MODEL" --port 8002 --ec-transfer-config "$EC" &
wait
