"""The private names of PyTorch that the library uses. A release may rename or remove them without notice.

Each line of `TABLE` has names, what the library uses them for, and what happens in a PyTorch that lacks them. Names
with a comma share what is before their last dot. Of names with "or", each release has one. The self-check prints the
names that the installed PyTorch lacks.

Operators and functions that have a record are not in the table, because registering them checks their names. Nor are
the `_saved` tensors of nodes, which PyTorch documents.
"""

TABLE = """\
torch.Tensor._backward_hooks, _post_accumulate_grad_hooks | keep hooks out of extra passes | ignoring fails
torch.Tensor._base | explain names calls that wrote into a view | explain fails at these calls, with a warning
torch.Tensor._is_zerotensor | a tensor without numbers | ignoring fails
torch.Tensor._make_subclass | makes a cotangent | ignoring fails
torch.Tensor._values, _indices | what a sparse tensor stores | passes over sparse tensors fail
torch.Tensor._version | shows that a tensor was written into | ignoring fails
torch.UntypedStorage._cdata | tells one memory from another | explain fails, with a warning
torch._C.DisableTorchFunction, _EnableTorchFunction | hide calls from modes, and show them again | import fails
torch._C._DisableAutocast | runs a compiled region's graph in the dtypes that it has | regions are not followed
torch._C._DisableTorchDispatch | changes the shape of a cotangent in place | in-place reshapes in derivatives fail
torch._C._ForceDispatchKeyGuard, DispatchKey | let rules see conjugate tensors | complex gradients fail
torch._C._current_autograd_node, _current_graph_task_id | what the engine runs in this thread | import fails
torch._C._disabled_torch_function_impl | keeps cotangents out of __torch_function__ | import fails
torch._C._dispatch_tls_local_exclude_set, _dispatch_tls_local_include_set | conjugate tensors | complex gradients fail
torch._C._dynamo.eval_frame.get_eval_frame_callback | whether Dynamo may trace | passes beside compiled code are slower
torch._C._dynamo.eval_frame.set_eval_frame | keeps Dynamo out of what runs uncompiled | import fails
torch._C._dynamo.eval_frame.skip_code or _FrameAction, skip_code or _FrameExecStrategy | untraced hooks | slower
torch._C._dynamo.eval_frame.skip_code or set_code_exec_strategy | keeps Dynamo out of hooks | slower hooks
torch._C._functions.AccumulateGrad | the types of PyTorch's own nodes | import fails
torch._C._functorch.TransformType, get_unwrapped, is_functorch_wrapped_tensor | see into torch.func | import fails
torch._C._functorch._add_batch_dim, is_batchedtensor, maybe_get_bdim, maybe_get_level | vmap over ignoring | it fails
torch._C._functorch.is_legacy_batchedtensor, maybe_current_level | whether torch.func is around a call | ignoring fails
torch._C._get_dispatch_stack_at | hides operators from the user's modes | explain fails below modes, with a warning
torch._C._get_graph_exec_group, _set_graph_exec_group | run a checkpoint twice | fine where PyTorch has no groups
torch._C._get_obj_in_tls, _is_key_in_tls | the pass that a thread works for | ignoring fails
torch._C._get_tracing_state | hides operators from torch.jit.trace | explain fails in traced code, with a warning
torch._C._is_tracing, _set_tracing_state, _len_torch_dispatch_stack | hide operators of explain | import fails
torch._C._nn.flatten_dense_tensors | joins small tensors | import fails
torch._C._profiler._ExperimentalConfig | which function wrote into a slice | gradients of such writes fail
torch._C._push_on_torch_dispatch_stack, _pop_torch_dispatch_stack, _set_grad_enabled | switch modes | import fails
torch._C._remove_obj_from_tls | frees what was noted for a thread | as before 2.13, a small object stays in the thread
torch._C._stash_obj_in_tls | the pass that a thread works for | import fails
torch._C._will_engine_execute_node | the nodes that a pass for some inputs runs | import fails
torch._decomp.get_decompositions | derivatives in parts | fused derivatives keep their NaN, with a warning
torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex | flex attention | it is not followed
torch._dynamo.backends.debugging | backends that keep their graphs | their regions are not followed
torch._dynamo.compiled_autograd._disable | takes a pass out of compiled autograd | passes inside of it fail
torch._dynamo.eval_frame._orig_mod | a module's wrapper | explain names the wrapper, too
torch._dynamo.eval_frame._torchdynamo_disable | keeps the compiler out | Dynamo traces the beginning of a pass
torch._dynamo.eval_frame.set_eval_frame or _maybe_set_eval_frame | where regions begin | Dynamo traces explain
torch._functorch._aot_autograd.runtime_wrappers._backward_impl, _lazy_backward_info | regions | not followed
torch._functorch.apis, eager_transforms | explain looks into torch.func | import fails
torch._functorch.config.donated_buffer | keeps a region's arguments | follow_compiled fails
torch._functorch.pyfunctorch.VmapInterpreter, temporarily_pop_interpreter_stack | see into torch.func | import fails
torch._functorch.pyfunctorch.retrieve_all_functorch_interpreters | sees into torch.func | import fails
torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter | sees into torch.func | import fails
torch._functorch.vmap._process_batched_inputs | vmap as a loop | import fails
torch._higher_order_ops.flex_attention._mask_graph, _score_mod_other_buffers_len | masks | not followed
torch._higher_order_ops.utils.saved_values or saved_tensors_and_symints | flex attention's mask | it is not followed
torch._inductor.config.joint_custom_pre_pass, joint_custom_post_pass | mark compiled zeros | follow_compiled fails
torch._inductor.custom_graph_pass.CustomGraphPass | marks the zeros of compiled graphs | follow_compiled fails
torch._ops.OpOverload | tells operators from other callables | import fails
torch._ops.OpOverload._schema | the arguments of operators | ignoring fails
torch._subclasses.fake_tensor.FakeTensor | a tensor without numbers | import fails
torch._subclasses.fake_tensor.FakeTensorMode._mode_key | PyTorch's own modes | explain fails while code is compiled
torch.autograd._enable_profiler_legacy, _disable_profiler_legacy | what wrote into a slice | its gradients fail
torch.autograd.Variable._execution_engine, _execution_engine.run_backward | asks which nodes will run | import fails
torch.autograd._engine_run_backward | sees each backward pass | explain and on_failure fail
torch.autograd._profiler_enabled, _enable_record_function | hide operators from profilers | import fails
torch.autograd.forward_ad._current_level | whether forward mode is active | ignoring fails
torch.autograd.function.FunctionMeta._forward_cls | the Function of a node | NaN from a Function is kept
torch.autograd.function._HookMixin | explain watches hooks on nodes | import fails
torch.autograd.function._HookMixin._register_hook | explain watches hooks on nodes | explain fails
torch.autograd.grad_mode._unsafe_preserve_version_counter | undoes writes of an extra pass | import fails
torch.autograd.graph.Node._input_metadata | shapes and dtypes of cotangents | ignoring fails
torch.autograd.graph._engine_run_backward | sees each backward pass | explain and on_failure fail
torch.distributed.fsdp._common_utils._fsdp_wrapped_module | a module's wrapper | explain names the wrapper, too
torch.distributed.tensor._api.DTensor._local_tensor, _op_dispatcher | parts of a DTensor | DTensors fail
torch.distributed.tensor._dispatch.OpDispatcher._custom_op_handlers | operators on DTensors | DTensors fail
torch.nested._internal.nested_tensor.NestedTensor._values | numbers of jagged tensors | jagged tensors fail
torch.nn.Module._buffers, _modules, _parameters | names of tensors | explain names no modules
torch.nn.Module._call_impl, _load_from_state_dict | the module around a call | import fails
torch.nn.attention.flex_attention._vmap_for_bhqkv | flex attention's mask | it is not followed
torch.nn.modules.linear_cross_entropy._ignore_index | rows that count | fine where it has no chunks
torch.overrides._get_current_function_mode_stack, _pop_mode, _push_mode | switch modes of explain | import fails
torch.testing._internal.common_methods_invocations.op_db | operators to check | selfcheck leaves them out
torch.utils._python_dispatch.TorchDispatchMode | sees operators | import fails
torch.utils._python_dispatch.TorchDispatchMode._should_skip_dynamo | fast modes | fine, if older
torch.utils._python_dispatch.is_in_torch_dispatch_mode | puts back flags after a mode | modes fail
torch.utils._pytree.TreeSpec, keystr, tree_flatten_with_path, tree_map, tree_map_only | nested arguments | import fails
torch.utils._pytree._broadcast_to_and_flatten | the dimensions of vmap | import fails
torch.utils._pytree.tree_flatten, tree_unflatten, tree_leaves | nested arguments | import fails
torch.utils.checkpoint._CachedTorchDispatchMode, _VersionWrapper | its cache | explain knows less
torch.utils.checkpoint._recomputation_hook | sees a checkpoint run again | explain fails
"""
