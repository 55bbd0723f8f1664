#!/usr/bin/env bash
# Records the two tables of experiments/cpu.toml, on a quiet machine, in five minutes: record_cpu.sh FOLDER. The same
# command again goes on where it was stopped.
set -euo pipefail
out=${1:?give the folder for the tables}
mkdir -p "$out"

# 1,024 routes; a sample of 50 gave 23 engines.
[ -f "$out/bert.onnx" ] || gpt-search workload bert "$out/bert.onnx"
gpt-search record "$out/bert.onnx" --shape input_ids=1x32 --metric cos --tolerance 0.001 --builders 2 \
  --out "$out/bert.jsonl.zst" --knobs "-model:quantize_dynamic=[off|s8] \
  -opt:SkipLayerNormFusion=[*] -opt:BiasSkipLayerNormFusion=[*] -opt:AttentionFusion=[*] -opt:BiasGeluFusion=[*] \
  -opt:GeluFusionL2=[*] -opt:MatMulAddFusion=[*] -opt:GemmActivationFusion=[*] -opt:ConstantFolding=[*] \
  -opt:EmbedLayerNormFusion=[*]"

# 2,048 routes; a sample of 150 gave 15 engines.
magika=$(python -c "from gpt_search.workloads.catalogue import public_model; print(public_model('magika').model)")
gpt-search record "$magika" --shape bytes=1x2048 --metric cos --tolerance 0.001 --builders 2 \
  --out "$out/magika.jsonl.zst" --knobs "-opt:MatMulAddFusion=[*] -opt:ConstantFolding=[*] -opt:GeluFusionL2=[*] \
  -opt:LayerNormFusionL2=[*] -opt:NchwcTransformer=[*] -opt:TransposeOptimizer=[*] \
  -opt:CommonSubexpressionElimination=[*] -session:graph_level=[all|extended|basic|disable] -session:mem_pattern=[*] \
  -session:prepacking=[*]"
